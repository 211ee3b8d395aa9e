"""Learning: from recorded requests to what the gateway looks up."""
