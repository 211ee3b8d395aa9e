"""Request traces: loaders, generators fitted to public ones, and the text of their prompts."""
