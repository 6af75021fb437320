"""What vendors sign, taken apart: quotes, certificates, collateral. Nothing here checks a signature."""
