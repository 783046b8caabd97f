using System;
using System.IO;

class Program
{
    static int Main(string[] arguments)
    {
        foreach (string argument in arguments)
        {
            Console.WriteLine(argument);
        }
        using (Stream input = Console.OpenStandardInput(), output = Console.OpenStandardOutput())
        {
            input.CopyTo(output);
        }
        return 3;
    }
}
