const language: string = "typescript";
console.log(`hello from ${language}`);
