"""What is on disk, as frozen records."""
