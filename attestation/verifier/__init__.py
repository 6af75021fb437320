"""Off-chain verification of quotes and registrations, and of reports of NVIDIA, AMD SEV-SNP and AWS Nitro."""
