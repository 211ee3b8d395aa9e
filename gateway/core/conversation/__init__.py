"""Conversations: who belongs to one, where it lives, and when it has to move."""
