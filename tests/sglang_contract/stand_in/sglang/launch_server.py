"""Found as ``python -m sglang.launch_server`` by a process with the directory above in PYTHONPATH: the contract server."""

from tests.sglang_contract.__main__ import main

if __name__ == "__main__":
    main()
