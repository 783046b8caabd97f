import java.io.IOException;
import java.util.List;

class args {
    public static void main(String[] arguments) throws IOException {
        List.of(arguments).forEach(System.out::println);
        System.in.transferTo(System.out);
        System.out.flush();
        System.exit(3);
    }
}

// Started as Main when the source comes without a file name.
class Main extends args {}
