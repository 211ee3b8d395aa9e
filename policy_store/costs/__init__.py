"""What engine work costs: the format, and the tables that come with the project."""
