#include <iostream>
#include <span>

int main(int argc, char **argv) {
    for (const char *argument : std::span(argv, argc).subspan(1)) {
        std::cout << argument << '\n';
    }
    if (std::cin.peek() != EOF) {
        std::cout << std::cin.rdbuf();
    }
    return 3;
}
