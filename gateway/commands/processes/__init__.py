"""Several processes that serve as one gateway (`server.workers`), and the parent that keeps them."""
