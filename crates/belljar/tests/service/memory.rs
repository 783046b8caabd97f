//! Files that a sandbox's memory cannot hold: they are refused, and neither the sandbox nor what it has ends.

use serde_json::json;

use crate::archives::{archive, entry};
use crate::client::{Answer, Client};
use crate::run;
use crate::server::Home;

/// Words of the refusal.
const REFUSAL: &str = "out of memory; files of a sandbox count against its limit memory";

async fn put(client: &Client, path: &str, body: Vec<u8>) -> Answer {
    client.send(client.request("PUT", path), body).await
}

/// Runtimes size their heaps by the sandbox's memory, and report when it is used up.
#[test]
fn runtimes_take_their_heap_from_the_limit() {
    if crate::skipped("runtimes_take_their_heap_from_the_limit") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let limits = json!({ "memory": "1g", "cpus": 1 });
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": limits })).await;
        if client.exec(&id, "command -v java javac").await["exit_code"] == 0 {
            let flags =
                client.sh(&id, "java -XX:+PrintFlagsFinal -version 2>/dev/null | grep -w MaxHeapSize").await;
            assert!(flags.split_whitespace().any(|word| word == (512 << 20).to_string()), "{flags}");
            let full = "import java.util.*; public class Full { public static void main(String[] a) { var all = new ArrayList<byte[]>();
                        for (;;) all.add(new byte[1 << 20]); } }";
            put(&client, &format!("/v1/sandboxes/{id}/files/content?path=Full.java"), full.into()).await;
            let done = client.exec(&id, "java Full.java").await;
            assert!(done["stderr"]["data"].to_string().contains("java.lang.OutOfMemoryError"), "{done}");
            let program = json!({ "language": "java", "code": "public class Main { public static void main(String[] a) { System.out.print(7); } }" });
            let done = client.post(&format!("/v1/sandboxes/{id}/code"), &program).await.json();
            assert_eq!(
                (&done["stdout"]["data"], &done["stderr"]["data"]),
                (&json!("7"), &json!("")),
                "{done}"
            );
        } else {
            crate::say("SKIPPED runtimes_take_their_heap_from_the_limit: Java is not installed");
        }
        if client.exec(&id, "command -v node").await["exit_code"] == 0 {
            let script = "const v8 = require('v8'); console.log(v8.getHeapStatistics().heap_size_limit >> 20, os.cpus().length)";
            let shown = client.sh(&id, &format!("node -e \"{script}\"")).await;
            let (heap, processors) = shown.trim().split_once(' ').expect("two numbers");
            assert!(heap.parse::<u64>().is_ok_and(|mib| mib < 600) && processors == "1", "{shown}");
        } else {
            crate::say("SKIPPED runtimes_take_their_heap_from_the_limit: node is not installed");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn files_beyond_the_memory_are_refused() {
    if crate::skipped("files_beyond_the_memory_are_refused") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        // A disk larger than the memory, so that the memory is what is full.
        let limits = json!({ "memory": "144m", "disk": "1g" });
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": limits })).await;
        let sandbox = format!("/v1/sandboxes/{id}");
        client.sh(&id, "head -c 20m /dev/zero > own; sleep 61919 > /dev/null 2>&1 &").await;
        let content = |name: &str| format!("{sandbox}/files/content?path={name}");
        let refused = put(&client, &content("big"), vec![0; 300 << 20]).await;
        refused.assert(409, "resource_exhausted");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains(REFUSAL), "{detail}");
        // Files that fit one by one.
        let mut answers = Vec::new();
        for number in 0..4 {
            answers.push(
                put(&client, &content(&format!("part{number}")), vec![0; 40 << 20]).await.status.as_u16(),
            );
        }
        assert_eq!(answers, [200, 200, 409, 409]);
        let refused = put(&client, &format!("{}&append=true", content("part0")), vec![0; 40 << 20]).await;
        refused.assert(409, "resource_exhausted");
        let packed = archive(&[entry(b'0', "big", 0o644, "", &vec![0; 300 << 20])]);
        let refused = put(&client, &format!("{sandbox}/files/archive?path=in"), packed).await;
        refused.assert(409, "resource_exhausted");
        assert!(refused.json()["detail"].to_string().contains(REFUSAL), "{refused:?}");
        // Nothing of what was refused is left, but everything else is. An append writes in place, as far as there is room.
        let left = client.sh(&id, "ls -A; stat -c %s own part1; pgrep -f 'sleep 6191[9]' | wc -l").await;
        assert_eq!(left, "own\npart0\npart1\n20971520\n41943040\n1\n");
        let metrics = client.get(&format!("{sandbox}/metrics")).await.json();
        assert_eq!(metrics["oom_kills"], json!(0), "{metrics}");
        // What is removed makes room.
        client.sh(&id, "rm part0 part1").await;
        assert_eq!(put(&client, &content("again"), vec![0; 40 << 20]).await.status, 200);
        crate::crash::shut_down(server, &home).await;
    });
}
