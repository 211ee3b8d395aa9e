"""What the replicas of a gateway know together: where each conversation is pinned, and how much KV that comes to.

The rule of this package: it may be gone at any time. Nobody waits for it longer than a deadline, nothing that goes
wrong in it reaches a request, and what was missed meanwhile is made good when it is back. Only `server` needs the
`redis` library.
"""
