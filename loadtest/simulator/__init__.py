"""A fleet and its gateway in virtual time: the gateway's own decision core over the engine model."""
