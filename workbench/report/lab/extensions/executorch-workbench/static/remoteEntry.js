// Written by hand in the form that JupyterLab loads: no build, and no Node.
let shared;
const MODEL = "executorch-workbench";
const KINDS = [
  { name: "executorch-trace", displayName: "ExecuTorch trace", extensions: [".etdump"] },
  { name: "executorch-program", displayName: "ExecuTorch program", extensions: [".pte"] },
  { name: "executorch-exported", displayName: "Exported program", extensions: [".pt2"] },
  { name: "executorch-run", displayName: "Run of the workbench", pattern: "^manifest\\.json$" },
];
const CELLS = [
  "import torch\n\nimport workbench as wb",
  "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    + "        self.conv = torch.nn.Conv2d(3, 16, 3)\n\n    def forward(self, x):\n"
    + "        return self.conv(x).relu()",
  "run = wb.profile(Net(), torch.randn(1, 3, 64, 64))\nrun",
  "wb.explore(run)",
];

const IMPORT = "import workbench as wb";

/** A new notebook with these cells, opened. */
async function write(app, folder, sources) {
  const { contents } = app.serviceManager;
  const { path } = await contents.newUntitled({ path: folder, type: "notebook" });
  const cells = sources.map(source => (
    { cell_type: "code", source, metadata: {}, outputs: [], execution_count: null }));
  const metadata = { kernelspec: { name: "python3", display_name: "Python 3" } };
  const content = { nbformat: 4, nbformat_minor: 4, metadata, cells };
  await contents.save(path, { type: "notebook", format: "json", content });
  return app.commands.execute("docmanager:open", { path });
}

async function run(app, folder, sources) {
  const panel = await write(app, folder, sources);
  await panel.sessionContext.ready;
  return app.commands.execute("notebook:run-all-cells");
}

/** Files that are dropped on a launcher are uploaded to the folder of the file browser, and shown. */
function accept(app, browser) {
  const isTarget = event => Boolean(
    event.target.closest?.(".jp-Launcher") && event.dataTransfer?.types.includes("Files"));
  document.addEventListener("dragover", event => { if (isTarget(event)) event.preventDefault(); });
  document.addEventListener("drop", async event => {
    if (!isTarget(event)) return;
    event.preventDefault();
    for (const file of [...event.dataTransfer.files]) {
      const { path } = await browser.model.upload(file);
      const factory = file.name.endsWith(".py") ? "Explorer" : undefined;
      app.commands.execute("docmanager:open", { path, factory });
    }
  });
}

/** Keys that are pressed in a list of a cell's output choose there, and no other cell. */
function keepKeys() {
  document.addEventListener("focusin", ({ target }) => {
    if (target.closest?.(".jupyter-widgets")) target.dataset.lmSuppressShortcuts = "true";
  });
}

async function take(name) {
  const versions = Object.values(shared[name]);
  return (await (versions.find(version => version.loaded) ?? versions[0]).get())();
}

async function load() {
  const names = ["coreutils", "docregistry", "filebrowser", "launcher", "services", "ui-components"];
  const [{ URLExt }, documents, { IDefaultFileBrowser }, { ILauncher }, { ServerConnection },
    { IFrame, ToolbarButton }] = await Promise.all(names.map(name => take(`@jupyterlab/${name}`)));

  // Only Python reads the file: the browser is not sent its content, and no checkpoint is made.
  class Model extends documents.TextModelFactory {
    get name() { return MODEL; }
    get fileFormat() { return null; }
  }

  let before;  // the run that others are compared with

  class Pages extends documents.ABCWidgetFactory {
    constructor(app, options, view) {
      super({ modelName: MODEL, readOnly: true, contentProviderId: MODEL, ...options });
      this.app = app;
      this.view = view;
    }

    createNewWidget(context) {
      // No allow-same-origin: a page cannot reach JupyterLab, its token or its kernels.
      const content = new IFrame({ sandbox: ["allow-scripts", "allow-downloads"] });
      const frame = content.node.querySelector("iframe");
      frame.title = this.name;
      const say = text => {
        const line = Object.assign(document.createElement("p"), { textContent: text });
        frame.srcdoc = `<body style="font:15px system-ui;margin:2em">${line.outerHTML}`;
      };
      const { serverSettings: server, contents } = this.app.serviceManager;
      const path = contents.localPath(context.path);
      const url = URLExt.join(server.baseUrl, MODEL, this.view);
      say(`Reading ${path} ...`);
      const sent = { method: "POST", body: JSON.stringify({ path, other: before }) };
      const widget = new documents.DocumentWidget({ content, context });
      const edit = async () => {
        const factory = "Editor";
        await this.app.commands.execute("docmanager:open", { path: context.path, factory });
        widget.dispose();
      };
      const offer = code => widget.toolbar.addItem("measure", new ToolbarButton({
        label: "Measure", tooltip: "Measure it in a new notebook",
        onClick: () => run(this.app, path.split("/").slice(0, -1).join("/"), [IMPORT, code]),
      }));
      ServerConnection.makeRequest(url, sent, server)
        .then(reply => reply.json())
        .then(({ page, message, foreign, code }) => {
          if (code) offer(code);
          return page ? (frame.srcdoc = page) : foreign ? edit() : say(message);
        })
        .catch(error => say(`${path}: ${error.message}`));
      return widget;
    }
  }

  function activate(app, launcher, browser) {
    keepKeys();
    const { docRegistry: registry, commands, contextMenu, serviceManager } = app;
    const { contents } = serviceManager;
    const drive = contents.defaultDrive;
    drive?.contentProviderRegistry?.register(MODEL, {
      get: async path => ({ ...(await drive.get(path, { content: false })), writable: false }),
      save: async () => { throw new Error("read only"); },
    });
    for (const kind of KINDS) registry.addFileType({ contentType: "file", ...kind });
    registry.addModelFactory(new Model());
    const fileTypes = KINDS.map(kind => kind.name);
    const explorer = {
      name: "Explorer", fileTypes: [...fileTypes, "python"], defaultFor: fileTypes };
    registry.addWidgetFactory(new Pages(app, explorer, "explorer"));
    for (const name of ["Report", "Comparison"]) {
      const view = name === "Report" ? "report" : "compare";
      registry.addWidgetFactory(new Pages(app, { name, fileTypes: ["executorch-run"] }, view));
    }

    const picked = () => browser?.selectedItems().next().value?.path;
    const open = factory => commands.execute("docmanager:open", { path: picked(), factory });
    const folder = path => path.split("/").slice(-2)[0];
    const items = [
      { label: "Report", execute: () => open("Report") },
      { label: "Select as Baseline", execute: () => { before = contents.localPath(picked()); } },
      { label: () => `Compare with ${folder(before ?? "")}`,
        isVisible: () => Boolean(before) && before !== contents.localPath(picked() ?? ""),
        execute: () => open("Comparison") },
    ];
    const selector = '.jp-DirListing-item[data-file-type="executorch-run"]';
    for (const [rank, item] of items.entries()) {
      commands.addCommand(`${MODEL}:${rank}`, item);
      contextMenu.addItem({ command: `${MODEL}:${rank}`, selector, rank });
    }

    commands.addCommand(`${MODEL}:new-profile`, {
      label: "New profile",
      caption: "A notebook that profiles the module in its cell",
      execute: ({ cwd }) => write(app, cwd, CELLS),
    });
    if (browser) accept(app, browser);
    launcher?.add({ command: `${MODEL}:new-profile`, category: "Notebook", rank: 9 });
  }

  const plugin = {
    id: `${MODEL}:plugin`, autoStart: true, optional: [ILauncher, IDefaultFileBrowser], activate,
  };
  return () => ({ __esModule: true, default: plugin });
}

(window._JUPYTERLAB ??= {})[MODEL] = { init: scope => { shared = scope; }, get: load };
