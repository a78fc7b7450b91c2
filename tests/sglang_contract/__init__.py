"""A server that speaks SGLang's HTTP contract with a tiny real model, and the suite that the client passes against it.

The contract's facts (routes, fields, defaults, flags) are fixtures/<version>.json, recorded out of SGLang's own wheels by
record.py; how the server behaves beyond them is written in the modules of this package.
"""
