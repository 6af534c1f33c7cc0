"""What software stacks do: one file per feature, each a record of its fields and of what options may set them to.

The names of fields are unique over all features, since they are the words of options.
"""
