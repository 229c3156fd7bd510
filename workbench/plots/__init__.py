"""From frames to figures and tables; nothing here computes a statistic."""
