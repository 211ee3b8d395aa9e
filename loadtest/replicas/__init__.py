"""Several gateways that share conversations through Redis, and what becomes of them as parts of it all are killed."""
