"""The machines of a run: ports, processes, Ray and the checks before the start."""
