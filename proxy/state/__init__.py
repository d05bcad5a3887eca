"""What is remembered: one owner a file, each with a stated bound."""
