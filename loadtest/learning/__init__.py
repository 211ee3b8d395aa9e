"""Learning path tables: the simulator and a live gateway as environments of `policy_store.learn`."""
