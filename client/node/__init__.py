"""What both kinds of node share: the loop over what is due, and the permissionless calls."""
