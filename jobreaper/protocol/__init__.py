"""The protocol for workers: claim, heartbeat, finish, fail and release."""
