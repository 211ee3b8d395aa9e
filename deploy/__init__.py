"""What an operator installs around the gateway: dashboards, rules, the compose stack."""
