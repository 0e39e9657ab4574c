from chameleon_policy.cli import main

main()
