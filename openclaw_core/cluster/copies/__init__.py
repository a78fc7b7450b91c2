"""What is sent to hosts that share no disk, in parts that can be resumed, checked by sha256: code, models, files."""
