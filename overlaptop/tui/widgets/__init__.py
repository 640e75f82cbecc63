"""The dashboard's widgets: each draws lines of runs and repaints those that changed."""
