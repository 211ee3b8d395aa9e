"""Large fleets: many workers and many gateway replicas, each of which sees a part of them, late."""
