"""The other two seed documents' names, over the same runner."""
