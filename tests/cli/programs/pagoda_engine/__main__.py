from fake_program import main

main("engine")
