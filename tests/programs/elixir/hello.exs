IO.puts("hello from elixir")
