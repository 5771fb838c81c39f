"""Reading: from bytes, text and files to a program, its module its operations, and other forms."""
