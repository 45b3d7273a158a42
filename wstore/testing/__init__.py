"""What tests of stores need, for this project and for outsiders: a suite, real servers, a fault server.

Nothing here imports pytest. `conformance` is the suite that every Store runs, `servers` starts real
S3 servers on free loopback ports, `fault_server` is an S3 server that misbehaves on command.
"""
