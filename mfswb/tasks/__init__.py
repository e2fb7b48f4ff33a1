"""What each task optimises, and what it saves."""
