"""The dashboard's widgets: each draws styled lines and repaints those that changed."""
