"""What the gateway tells about itself: metrics, the decision log, logs and the router's journal."""
