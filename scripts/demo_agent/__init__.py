"""A scripted agent that does a real task with real tools, and the recorder around it."""
