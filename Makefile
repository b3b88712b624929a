all:
	cmake --preset release >/dev/null
	cmake --build build
