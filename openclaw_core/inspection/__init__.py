"""What a run did, for people: its turns, and what the loss saw of their tokens. Reads only; a live run is not disturbed."""
