"""Images with what is known of them: labels, masks, boxes."""
