"""Starting jobs under torchrun and keeping them, here and on other hosts."""
