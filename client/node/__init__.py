"""The base of both kinds of node: the loop over what is due, and the permissionless calls."""
