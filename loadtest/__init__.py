"""Load and emulation: traces, the engine model, emulated workers, the load client, fleets and demonstrations."""
