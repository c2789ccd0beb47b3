module tidegate

go 1.19
