"""What is asked of a host's Docker engine: containers, images, builds. Outside the simulation only here is docker-py known."""
