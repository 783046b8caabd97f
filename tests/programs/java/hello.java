class hello {
    public static void main(String[] args) {
        System.out.println("hello from java");
    }
}

// Started as Main when the source comes without a file name.
class Main extends hello {}
