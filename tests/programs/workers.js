// Worker threads and child processes at once: each keeps a heap of objects, changes it, and tells its hash.
//   workers.js ENTRIES ROUNDS
"use strict";
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const { fork, execFileSync } = require("child_process");
const { createHash } = require("crypto");

// The hash of a map of `entries` objects after `rounds` of changes; the same for the same seed.
function churn(seed, entries, rounds) {
    let x = seed + 1;
    const next = () => (x = (Math.imul(x, 1664525) + 1013904223) >>> 0);
    const kept = new Map();
    for (let round = 0; round < rounds; round++) {
        for (let i = 0; i < entries; i++) {
            const key = next() % entries;
            if (next() % 5 === 0) kept.delete(key);
            else kept.set(key, { id: key, text: `row ${next()} of ${key}`, list: [next(), next(), next()] });
        }
    }
    const hash = createHash("sha256");
    for (const key of [...kept.keys()].sort((a, b) => a - b)) hash.update(JSON.stringify(kept.get(key)));
    return hash.digest("hex");
}

if (!isMainThread) {
    parentPort.postMessage(churn(...workerData));
} else if (process.send) {
    process.once("message", (work) => process.send(churn(...work), () => process.disconnect()));
} else {
    const [entries, rounds] = process.argv.slice(2).map(Number);
    const results = [];
    for (let seed = 0; seed < 4; seed++) {
        results.push(new Promise((told, failed) => {
            if (seed % 2) {
                const worker = new Worker(__filename, { workerData: [seed, entries, rounds] });
                worker.once("message", told).once("error", failed);
            } else {
                const child = fork(__filename);
                child.once("message", told).once("error", failed);
                child.once("exit", (code, signal) => failed(new Error(`child: ${code} ${signal}`)));
                child.send([seed, entries, rounds]);
            }
        }));
    }
    Promise.all(results).then((hashes) => {
        hashes.push(churn(99, entries, 1));
        hashes.push(execFileSync("sh", ["-c", "seq 1 100000 | sort -R --random-source=/dev/zero | sha256sum"]).toString().trim());
        console.log(hashes.join("\n"));
    });
}
