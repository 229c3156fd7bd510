"""From traces to frames, and from frames to what they show."""
