"""What figures share: paper, panels, colours, captions, notes."""
