"""Paper, panels, colours, captions and notes that figures share."""
