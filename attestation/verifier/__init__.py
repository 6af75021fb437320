"""Off-chain verification of registrations, and of evidence of NVIDIA, AMD SEV-SNP and AWS Nitro."""
